"""What a driver is: the types and frames that every driver and launcher share."""
