"""What requests to servers and requests to ingresses have in common: reasons, how they are ended and reported."""
