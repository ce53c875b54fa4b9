// Package device is what every device does alike: the queue of submissions and
// the sessions that they belong to, the checks of what is asked, the upload
// section as a plan, and the errors.
//
// A device embeds Base, which has the methods of replay.Device, and implements
// Backend, which is what is its own: allocating, copying, executing. Its
// executor takes jobs from Queue.
//
// It knows tables and element types. It must not know a device.
package device
