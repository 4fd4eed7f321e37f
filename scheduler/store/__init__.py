"""What is durable: rows, transactions and queries on SQLite or PostgreSQL."""
