"""Programs that use the library like any user: the labelling page, and the reproductions of the papers."""
