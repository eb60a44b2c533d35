"""What all parts of Drumroll share: the RLJob, the three stores, errors. Light to import."""
