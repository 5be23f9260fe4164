"""The routes, one file per noun. A handler reads one line per thing it does; the store decides, the edge has judged."""
