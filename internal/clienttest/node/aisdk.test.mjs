// Tests of the npm package ai with the provider @ai-sdk/openai-compatible.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { APICallError, embedMany, generateText, RetryError, stepCountIs, streamText, tool } from 'ai'
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { z } from 'zod'
import { base, collect, key, model, seen, weather } from './common.mjs'

const provider = createOpenAICompatible({ name: 'pianola', baseURL: `${base}/v1`, apiKey: key, includeUsage: true })
const chat = { model: provider(model), maxRetries: 0 }
const quiet = { onError: () => {} } // errors are looked at below

test('whole', async () => {
	const reply = await generateText({ ...chat, system: 'Be brief.', prompt: 'Say hello.' })
	assert.equal(reply.text, 'Hello, world!')
	assert.equal(reply.finishReason, 'stop')
	assert.ok(reply.usage.inputTokens > 0 && reply.usage.outputTokens > 0)
})

test('streamed', async () => {
	const reply = streamText({ ...chat, prompt: 'Say hello.' })
	assert.equal((await collect(reply.textStream)).join(''), 'Hello, world!')
	assert.equal(await reply.finishReason, 'stop')
	assert.ok((await reply.usage).outputTokens > 0)
})

test('reasoning', async () => {
	const whole = await generateText({ ...chat, prompt: 'What is 2 + 2?' })
	assert.deepEqual([whole.reasoningText, whole.text], ['Two and two make four.', '4'])
	const streamed = streamText({ ...chat, prompt: 'What is 2 + 2?' })
	assert.deepEqual([await streamed.reasoningText, await streamed.text], ['Two and two make four.', '4'])
})

test('a loop of tools', async () => {
	const tools = {
		[weather.name]: tool({ description: weather.description, inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `${city}: 18 degrees` }),
	}
	const run = { ...chat, prompt: 'What is the weather in Paris?', tools, stopWhen: stepCountIs(3) }
	const whole = await generateText(run)
	assert.equal(whole.text, 'It says: Paris: 18 degrees')
	assert.equal(whole.steps.length, 2)
	const streamed = streamText(run)
	assert.equal((await collect(streamed.textStream)).join(''), 'It says: Paris: 18 degrees')
	assert.equal((await streamed.steps).length, 2)
})

test('completions', async () => {
	const run = { ...chat, model: provider.completionModel(model), prompt: 'Say hello.' }
	assert.match((await generateText(run)).text, /Hello, world!/)
	assert.match((await collect(streamText(run).textStream)).join(''), /Hello, world!/)
})

test('embeddings', async () => {
	const { embeddings } = await embedMany({ model: provider.textEmbeddingModel(model), values: ['one', 'two'], maxRetries: 0 })
	assert.equal(embeddings.length, 2)
	assert.notDeepEqual(embeddings[0], embeddings[1])
})

test('errors', async () => {
	const status = (n) => (e) => APICallError.isInstance(e) && e.statusCode === n
	await assert.rejects(generateText({ ...chat, model: provider('missing'), prompt: 'Say hello.' }), status(404))
	await assert.rejects(generateText({ ...chat, prompt: 'Say hello.', temperature: 3 }), status(400))
	const stranger = createOpenAICompatible({ name: 'pianola', baseURL: `${base}/v1`, apiKey: 'sk-wrong-0123456789' })
	await assert.rejects(generateText({ ...chat, model: stranger(model), prompt: 'Say hello.' }), status(401))
	const parts = await collect(streamText({ ...chat, ...quiet, prompt: 'Break.' }).fullStream)
	assert.ok(parts.some((p) => p.type === 'error'))
})

test('a busy model is tried again', async () => {
	await assert.rejects(generateText({ ...chat, prompt: 'Be busy once: ai 1' }), (e) => (RetryError.isInstance(e) ? e.lastError : e).statusCode === 429)
	assert.equal((await generateText({ ...chat, maxRetries: 2, prompt: 'Be busy once: ai 2' })).text, 'Hello, world!')
})

test('a client that goes away cancels', async () => {
	const before = await seen('cancelled', 0)
	const abort = new AbortController()
	const reply = streamText({ ...chat, ...quiet, prompt: 'Talk on.', abortSignal: abort.signal })
	let events = 0
	for await (const _ of reply.textStream) if (++events === 3) abort.abort()
	await seen('cancelled', before + 1)
})
