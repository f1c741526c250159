"""What people read: text, pages and figures."""
