"""A report as plain values, then as HTML, Markdown, SVG and PNG."""
