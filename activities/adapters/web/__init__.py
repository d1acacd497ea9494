"""Read pages from the public web: `fetcher` downloads them safely, and `html_reader` converts them to Markdown."""
