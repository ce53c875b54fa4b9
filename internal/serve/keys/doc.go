// Package keys decides which requests of a service are admitted. It reads API keys from a file,
// finds the key of a request in constant time, and limits each key's rate and concurrency.
//
// A line of the file has a name, a key and the key's limits:
//
//	# NAME   KEY                                      LIMITS
//	alice    sk-2f6b0d0c5a8e4d1b                      rate=5/s burst=10 concurrent=4
//	batch    sha256:8d969eef6ecad3c29a3a629280e686cf0c3f5d5a86aff3ca12020c923adc6c92  concurrent=32
//	probe    sk-77e1c3a09b524f8e
//
// The name appears in logs and metrics; the key does not. A key is text of at least 16 characters, or
// the SHA-256 of such a text, which "printf %s KEY | sha256sum" prints. A key without a limit has the
// service's default.
package keys
