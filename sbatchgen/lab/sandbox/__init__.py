"""The sandbox of bubblewrap, in which untrusted programs run within limits. It imports only base."""
