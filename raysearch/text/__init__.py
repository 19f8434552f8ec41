"""Text that people read: parts of sentences, and the redaction of secrets."""
