"""Text that people read: numbers, parts of sentences, escapes, and the redaction of secrets."""
