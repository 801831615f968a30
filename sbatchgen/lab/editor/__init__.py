"""What an editor asks of a script, a job or a profile while somebody writes it: `server` answers it."""
