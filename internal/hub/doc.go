// Package hub downloads models from the Hugging Face Hub, or from a mirror, into the cache
// directory that other tools share, and finds them there again.
//
// A model is named by an ID such as org/name:Q4_K_M@main. Client.Pull asks the server for the
// commit and the list of files, chooses the files of one model, downloads what the cache lacks, and
// returns a local path. Client.Cached does the same with the cache alone.
//
// # The cache
//
// The layout is the one that the Hub documents: a folder models--org--name for each repository, with
//
//	blobs/HASH             the content of a file, named by its SHA-256 or its Git hash
//	snapshots/COMMIT/NAME  a link to a blob
//	refs/REVISION          the commit of a branch or a tag
//
// and the locks of downloads in .locks/models--org--name/HASH.lock. A file is downloaded to
// blobs/HASH.pianola, which records the ranges that it has, so that a later run resumes. It becomes
// the blob by a rename after its hash has been checked. Links are made after all blobs are there, and
// the ref after all links. A process that is killed at any time leaves only files that the next
// one uses or ignores.
//
// # What is not trusted
//
// Listings, headers, redirects and file names come from the server. Numbers and sizes are bounded,
// names are relative paths without "..", and files are accessed through an os.Root, which follows no
// link out of the repository's folder. The token is sent only to the origin of the endpoint.
package hub
