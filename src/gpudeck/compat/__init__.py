"""The five monitors that came before: their clients, nodes and files keep working. Nothing else knows their names."""
