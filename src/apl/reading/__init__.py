"""How recalled rows become a posterior."""
