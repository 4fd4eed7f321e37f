"""Downloads one file by URL, safely."""
