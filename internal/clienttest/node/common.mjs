// What the tests of all clients share. The program that runs them gives the base URL of the service, the
// URL by which the tests ask what the model has seen, and an API key.
import assert from 'node:assert/strict'

export const [base, control, key] = process.argv.slice(2)
export const model = 'scripted'

// seen waits until the model has seen n events of a name since the service began, such as cancelled
// generations. It returns their number.
export async function seen(name, n) {
	const reply = await fetch(`${control}/seen?name=${name}&n=${n}`)
	assert.equal(reply.status, 200)
	return Number(await reply.text())
}

// collect returns the items of an asynchronous iterable.
export async function collect(iterable) {
	const all = []
	for await (const item of iterable) all.push(item)
	return all
}

export const weather = {
	name: 'get_weather',
	description: 'Returns the weather of a city.',
	schema: {
		type: 'object',
		properties: { city: { type: 'string' } },
		required: ['city'],
	},
}
