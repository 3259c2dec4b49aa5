"""What `/openapi.json` says of the routes: their fields and what these mean, and the document."""
