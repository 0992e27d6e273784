"""Tunnels of clusters that dial out: the hub's side, and the edge's side."""
