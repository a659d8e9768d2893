"""What is asked about records, and what a noisy answer says: public on both sides of the release."""
