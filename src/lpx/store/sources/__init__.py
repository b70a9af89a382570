"""Where models come from: one file a kind of source. Each turns what a user writes into a `Plan` of files to fetch."""
