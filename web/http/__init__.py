"""What every endpoint needs: the server, access rules, problems, idempotency, event streams and the OpenAPI document."""
