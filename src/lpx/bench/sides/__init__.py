"""The sides of a comparison: engines in processes of their own, and servers; how they are named and asked."""
