package pressure

// System returns the source for this process.
func System() (Source, error) { return own("/proc") }
