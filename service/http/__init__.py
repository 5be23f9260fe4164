"""What answers requests: the app, what happens before a route sees a request, and the routes."""
