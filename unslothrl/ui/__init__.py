"""`unslothrl ui`: a page on this machine over the command line and the run folders."""
