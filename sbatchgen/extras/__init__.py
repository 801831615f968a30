"""What the commands can do without: the language server, the page, the rehearsal. cli alone imports it."""
