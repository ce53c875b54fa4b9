// Tests of the npm package @anthropic-ai/sdk.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import Anthropic from '@anthropic-ai/sdk'
import { base, collect, key, model, seen, weather } from './common.mjs'

const client = new Anthropic({ baseURL: base, apiKey: key, maxRetries: 0 })
const ask = (content, more) => ({ model, max_tokens: 1000, messages: [{ role: 'user', content }], ...more })
const tools = [{ name: weather.name, description: weather.description, input_schema: weather.schema }]
const thinking = { type: 'enabled', budget_tokens: 1024 }

test('whole', async () => {
	const reply = await client.messages.create(ask('Say hello.', { system: 'Be brief.' }))
	assert.deepEqual(reply.content, [{ type: 'text', text: 'Hello, world!', citations: null }])
	assert.equal(reply.stop_reason, 'end_turn')
	assert.ok(reply.usage.input_tokens > 0 && reply.usage.output_tokens > 0)
})

test('streamed', async () => {
	const stream = client.messages.stream(ask('Say hello.'))
	let text = ''
	stream.on('text', (delta) => (text += delta))
	const reply = await stream.finalMessage()
	assert.equal(text, 'Hello, world!')
	assert.equal(await stream.finalText(), text)
	assert.equal(reply.stop_reason, 'end_turn')
	assert.ok(reply.usage.output_tokens > 0)
})

test('thinking', async () => {
	const want = [['thinking', 'Two and two make four.'], ['text', '4']]
	const blocks = (reply) => reply.content.map((b) => [b.type, b.thinking ?? b.text])
	assert.deepEqual(blocks(await client.messages.create(ask('What is 2 + 2?', { thinking }))), want)
	assert.deepEqual(blocks(await client.messages.stream(ask('What is 2 + 2?', { thinking })).finalMessage()), want)
	assert.deepEqual(blocks(await client.messages.create(ask('What is 2 + 2?'))), want.slice(1))
})

test('stop sequences and limits', async () => {
	const stopped = await client.messages.create(ask('Say hello.', { stop_sequences: [','] }))
	assert.deepEqual([stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text], ['stop_sequence', ',', 'Hello'])
	const short = await client.messages.create(ask('Say hello.', { max_tokens: 1 }))
	assert.equal(short.stop_reason, 'max_tokens')
})

test('a loop of tools', async () => {
	for (const streamed of [false, true]) {
		const create = (body) => streamed ? client.messages.stream(body).finalMessage() : client.messages.create(body)
		const question = ask('What is the weather in Paris?', { tools })
		const first = await create(question)
		assert.equal(first.stop_reason, 'tool_use')
		const call = first.content.find((b) => b.type === 'tool_use')
		assert.deepEqual(call.input, { city: 'Paris' })
		const result = { type: 'tool_result', tool_use_id: call.id, content: [{ type: 'text', text: '18 degrees' }] }
		const second = await create({ ...question, messages: [...question.messages, { role: 'assistant', content: first.content }, { role: 'user', content: [result] }] })
		assert.equal(second.content[0].text, 'It says: 18 degrees')
	}
})

test('calls in parallel and one at a time', async () => {
	const question = ask('What is the weather in Paris and Rome?', { tools })
	const cities = (reply) => reply.content.map((b) => b.input.city)
	assert.deepEqual(cities(await client.messages.create(question)), ['Paris', 'Rome'])
	const one = { ...question, tool_choice: { type: 'auto', disable_parallel_tool_use: true } }
	assert.deepEqual(cities(await client.messages.stream(one).finalMessage()), ['Paris'])
})

test('count of tokens', async () => {
	const { max_tokens, ...question } = ask('Say hello.')
	const count = await client.messages.countTokens(question)
	const reply = await client.messages.create({ ...question, max_tokens })
	assert.equal(count.input_tokens, reply.usage.input_tokens + reply.usage.cache_read_input_tokens)
})

test('errors', async () => {
	const create = (more, c = client) => c.messages.create(ask('Say hello.', more))
	await assert.rejects(create({ model: 'missing' }), (e) => e instanceof Anthropic.NotFoundError && e.error.error.type === 'not_found_error')
	await assert.rejects(create({ temperature: 3 }), (e) => e instanceof Anthropic.BadRequestError && e.error.error.type === 'invalid_request_error')
	await assert.rejects(create({ tools, tool_choice: { type: 'any' } }), Anthropic.BadRequestError)
	await assert.rejects(create({ frobnicate: true }), (e) => e instanceof Anthropic.BadRequestError && /frobnicate/.test(e.message))
	await assert.rejects(create({}, client.withOptions({ apiKey: 'sk-wrong-0123456789' })), (e) => e instanceof Anthropic.AuthenticationError && e.error.error.type === 'authentication_error')
})

test('a busy model is tried again', async () => {
	await assert.rejects(client.messages.create(ask('Be busy once: anthropic 1')), Anthropic.RateLimitError)
	const reply = await client.messages.create(ask('Be busy once: anthropic 2'), { maxRetries: 2 })
	assert.equal(reply.content[0].text, 'Hello, world!')
})

test('an error in a stream', async () => {
	await assert.rejects(client.messages.stream(ask('Break.')).finalMessage(), Anthropic.APIError)
})

test('a client that goes away cancels', async () => {
	const before = await seen('cancelled', 0)
	const stream = await client.messages.create(ask('Talk on.', { stream: true }))
	let events = 0
	for await (const _ of stream) if (++events === 5) break // ends the connection
	await seen('cancelled', before + 1)
	const [abort, talks] = [new AbortController(), await seen('talking', 0)]
	const whole = client.messages.create(ask('Talk on.'), { signal: abort.signal })
	await seen('talking', talks + 1)
	abort.abort()
	await assert.rejects(whole, Anthropic.APIUserAbortError)
	await seen('cancelled', before + 2)
})
