"""The HTTP API and the pages that any node can serve for its own home: a shell around the store, the plans and the swarm.

browser, curl ──▶ guard ──▶ app ──▶ first (/api), v1 (/api/v1), dashboard (/) ──▶ desk ──▶ store, submit, peers
"""
