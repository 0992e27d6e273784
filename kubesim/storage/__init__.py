"""The store with its resource versions, lists with pages, and watches."""
