"""Reading model files. A file is data: whatever is in it, the worst that comes of it is a `FileError`."""
