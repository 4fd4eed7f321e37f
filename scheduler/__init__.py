"""One campaign: plan, find, agree, collect, store, report."""
