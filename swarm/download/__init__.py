"""One file by URL, safely."""
