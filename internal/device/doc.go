// Package device implements what all devices have in common: the submission queue, sessions, the
// checks of requests, the conversions that the upload section requires, and errors.
//
// A device embeds Base, which provides the methods of replay.Device, and implements Backend,
// which allocates, copies and executes. The device's executor takes jobs from Queue.
//
// The package knows tables and element types. It must not know any particular device.
package device
