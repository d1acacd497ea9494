"""Pages of the public web: `fetcher` downloads them safely, and `html_reader` converts them to Markdown."""
