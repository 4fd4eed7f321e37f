"""What is signed and by whom: adverts, manifests, grants, proofs, permissions."""
