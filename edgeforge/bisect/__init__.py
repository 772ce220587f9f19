"""The smallest piece of a graph that still fails: cut (units), choose (search), feed (values), try and keep (run)."""
