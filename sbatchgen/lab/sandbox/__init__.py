"""The sandbox of bubblewrap, in which untrusted programs run within limits. The package imports only base."""
