"""Durable state: rows, transactions and queries on SQLite or PostgreSQL."""
