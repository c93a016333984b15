"""What a fit looks like: plain records, and the text, SVG charts, HTML page and matplotlib plots drawn from them."""
