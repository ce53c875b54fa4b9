// Tests of the npm packages with a model that generates: with temperature 0, whole replies and streams
// have the same text.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import Anthropic from '@anthropic-ai/sdk'
import { generateText, streamText } from 'ai'
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI from 'openai'
import { base, key } from './common.mjs'

const [model, content] = ['gopher-q8_0', 'package main']
const openai = new OpenAI({ baseURL: `${base}/v1`, apiKey: key })
const messages = [{ role: 'user', content }]

test('openai', async () => {
	const chat = { model, messages, max_tokens: 12, temperature: 0 }
	const whole = (await openai.chat.completions.create(chat)).choices[0].message.content
	assert.ok(whole)
	assert.equal(await openai.chat.completions.stream(chat).finalContent(), whole)
	const response = { model, input: content, max_output_tokens: 12, temperature: 0 }
	assert.equal((await openai.responses.create(response)).output_text, whole)
	assert.equal((await openai.responses.stream(response).finalResponse()).output_text, whole)
	assert.equal((await openai.embeddings.create({ model, input: content })).data.length, 1)
})

test('@anthropic-ai/sdk', async () => {
	const client = new Anthropic({ baseURL: base, apiKey: key })
	const message = { model, messages, max_tokens: 12, temperature: 0 }
	const whole = await client.messages.create(message)
	assert.ok(whole.content[0].text)
	assert.equal(await client.messages.stream(message).finalText(), whole.content[0].text)
	assert.ok((await client.messages.countTokens({ model, messages })).input_tokens > 0)
})

test('ai with @ai-sdk/openai-compatible', async () => {
	const provider = createOpenAICompatible({ name: 'pianola', baseURL: `${base}/v1`, apiKey: key })
	const run = { model: provider(model), prompt: content, maxOutputTokens: 12, temperature: 0 }
	const { text } = await generateText(run)
	assert.ok(text)
	assert.equal(await streamText(run).text, text)
})
