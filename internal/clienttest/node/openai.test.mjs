// Tests of the npm package openai.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI from 'openai'
import { base, collect, key, model, seen, weather } from './common.mjs'

const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: key, maxRetries: 0 })
const user = (content) => [{ role: 'user', content }]
const chatTool = { type: 'function', function: { name: weather.name, description: weather.description, parameters: weather.schema } }
const tool = { type: 'function', name: weather.name, description: weather.description, parameters: weather.schema, strict: false }

test('models', async () => {
	const all = await collect(client.models.list())
	assert.deepEqual(all.map((m) => m.id), [model])
	assert.equal((await client.models.retrieve(model)).id, model)
})

test('chat: whole', async () => {
	const reply = await client.chat.completions.create({ model, messages: user('Say hello.') })
	assert.equal(reply.choices[0].message.content, 'Hello, world!')
	assert.equal(reply.choices[0].finish_reason, 'stop')
	assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)
	assert.match(reply._request_id, /./)
})

test('chat: streamed', async () => {
	const stream = client.chat.completions.stream({ model, messages: user('Say hello.'), stream_options: { include_usage: true } })
	let text = ''
	stream.on('content', (delta) => (text += delta))
	const reply = await stream.finalChatCompletion()
	assert.equal(text, 'Hello, world!')
	assert.equal(reply.choices[0].message.content, text)
	assert.ok((await stream.totalUsage()).completion_tokens > 0)
})

test('chat: several choices and log-probabilities', async () => {
	const reply = await client.chat.completions.create({ model, messages: user('Say hello.'), n: 2, logprobs: true, top_logprobs: 2 })
	assert.equal(reply.choices.length, 2)
	for (const c of reply.choices) {
		assert.equal(c.logprobs.content.map((t) => t.token).join(''), 'Hello, world!')
		assert.equal(c.logprobs.content[0].top_logprobs.length, 2)
	}
})

test('chat: reasoning', async () => {
	const reply = await client.chat.completions.create({ model, messages: user('What is 2 + 2?') })
	assert.equal(reply.choices[0].message.content, '4')
	assert.equal(reply.choices[0].message.reasoning_content, 'Two and two make four.')
	assert.ok(reply.usage.completion_tokens_details.reasoning_tokens > 0)
})

test('chat: a loop of tools', async () => {
	for (const streamed of [false, true]) {
		let calls = 0
		const run = { model, messages: user('What is the weather in Paris?'), stream: streamed }
		const runner = client.chat.completions.runTools({
			...run,
			tools: [{
				type: 'function',
				function: {
					name: weather.name, description: weather.description, parameters: weather.schema, parse: JSON.parse,
					function: ({ city }) => { calls++; assert.equal(city, 'Paris'); return '18 degrees' },
				},
			}],
		})
		assert.equal(await runner.finalContent(), 'It says: 18 degrees')
		assert.equal(calls, 1)
	}
})

test('chat: parallel calls, streamed', async () => {
	const stream = client.chat.completions.stream({ model, messages: user('What is the weather in Paris and Rome?'), tools: [chatTool] })
	const reply = await stream.finalChatCompletion()
	assert.equal(reply.choices[0].finish_reason, 'tool_calls')
	assert.deepEqual(reply.choices[0].message.tool_calls.map((c) => JSON.parse(c.function.arguments).city), ['Paris', 'Rome'])
})

test('completions', async () => {
	const reply = await client.completions.create({ model, prompt: 'Say hello.' })
	assert.equal(reply.choices[0].text, 'Hello, world!')
	const stream = await client.completions.create({ model, prompt: 'Say hello.', stream: true })
	assert.equal((await collect(stream)).map((c) => c.choices[0]?.text ?? '').join(''), 'Hello, world!')
})

test('embeddings', async () => {
	const reply = await client.embeddings.create({ model, input: ['one', 'two'] }) // in base64
	assert.equal(reply.data.length, 2)
	const plain = await client.embeddings.create({ model, input: 'one', encoding_format: 'float' })
	plain.data[0].embedding.forEach((x, i) => assert.ok(Math.abs(x - reply.data[0].embedding[i]) < 1e-6))
})

test('responses: whole', async () => {
	const reply = await client.responses.create({ model, input: 'Say hello.', instructions: 'Be brief.' })
	assert.equal(reply.output_text, 'Hello, world!')
	assert.equal(reply.status, 'completed')
	assert.equal((await client.responses.retrieve(reply.id)).output_text, reply.output_text)
	assert.equal((await collect(client.responses.inputItems.list(reply.id))).length, 1)
	await client.responses.delete(reply.id)
	await assert.rejects(client.responses.retrieve(reply.id), OpenAI.NotFoundError)
})

test('responses: streamed', async () => {
	const stream = client.responses.stream({ model, input: 'What is 2 + 2?' })
	const events = await collect(stream)
	events.forEach((e, i) => assert.equal(e.sequence_number, i))
	const reply = await stream.finalResponse()
	assert.equal(reply.output_text, '4')
	assert.equal(reply.output[0].content[0].text, 'Two and two make four.')
	assert.equal(events.at(-1).type, 'response.completed')
})

test('responses: a loop of tools with the previous response', async () => {
	for (const streamed of [false, true]) {
		const create = async (body) => streamed ? client.responses.stream(body).finalResponse() : client.responses.create(body)
		const first = await create({ model, input: 'What is the weather in Paris?', tools: [tool] })
		const call = first.output.find((i) => i.type === 'function_call')
		assert.deepEqual(JSON.parse(call.arguments), { city: 'Paris' })
		const output = { type: 'function_call_output', call_id: call.call_id, output: '18 degrees' }
		const second = await create({ model, previous_response_id: first.id, input: [output], tools: [tool] })
		assert.equal(second.output_text, 'It says: 18 degrees')
	}
})

test('errors', async () => {
	const chat = (body, c = client) => c.chat.completions.create({ model, messages: user('Say hello.'), ...body })
	const respond = (body, c = client) => c.responses.create({ model, input: 'Say hello.', ...body })
	for (const create of [chat, respond]) {
		await assert.rejects(create({ model: 'missing' }), OpenAI.NotFoundError)
		await assert.rejects(create({ temperature: 3 }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature')
		await assert.rejects(create({ tool_choice: 'required' }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'tool_choice')
		await assert.rejects(create({ frobnicate: true }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'frobnicate')
		await assert.rejects(create({}, client.withOptions({ apiKey: 'sk-wrong-0123456789' })), OpenAI.AuthenticationError)
	}
})

test('a busy model is tried again', async () => {
	const chat = (id, maxRetries) => client.chat.completions.create({ model, messages: user(`Be busy once: ${id}`) }, { maxRetries })
	await assert.rejects(chat('openai 1', 0), OpenAI.RateLimitError)
	assert.equal((await chat('openai 2', 2)).choices[0].message.content, 'Hello, world!')
	const respond = (id, maxRetries) => client.responses.create({ model, input: `Be busy once: ${id}` }, { maxRetries })
	await assert.rejects(respond('openai 3', 0), OpenAI.RateLimitError)
	assert.equal((await respond('openai 4', 2)).output_text, 'Hello, world!')
})

test('an error in a stream', async () => {
	await assert.rejects(client.chat.completions.stream({ model, messages: user('Break.') }).finalChatCompletion(), OpenAI.APIError)
	await assert.rejects(client.responses.stream({ model, input: 'Break.' }).finalResponse(), { type: 'error', code: 'server_error' })
})

test('a client that goes away cancels', async () => {
	const streams = {
		chat: () => client.chat.completions.create({ model, messages: user('Talk on.'), stream: true }),
		responses: () => client.responses.create({ model, input: 'Talk on.', stream: true }),
		completions: () => client.completions.create({ model, prompt: 'Talk on.', max_tokens: 1000, stream: true }),
	}
	for (const create of Object.values(streams)) {
		const before = await seen('cancelled', 0)
		const stream = await create()
		let events = 0
		for await (const _ of stream) if (++events === 5) break // ends the connection
		await seen('cancelled', before + 1)
	}
	const before = await seen('cancelled', 0)
	const [abort, talks] = [new AbortController(), await seen('talking', 0)]
	const whole = client.responses.create({ model, input: 'Talk on.' }, { signal: abort.signal })
	await seen('talking', talks + 1)
	abort.abort()
	await assert.rejects(whole, OpenAI.APIUserAbortError)
	await seen('cancelled', before + 1)
})
