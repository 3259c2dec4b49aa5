"""Description of the routes for `/openapi.json`: fields, their meanings, and the document."""
