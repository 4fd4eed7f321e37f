"""The basis of all endpoints: the server, access rules, problems, idempotency, event streams and the OpenAPI document."""
