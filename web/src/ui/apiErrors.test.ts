import { expect, test } from 'vitest'
import { explain } from './apiErrors'

test('what the hub forbids begins with that, in its words', () => {
  const refusal = { status: 403, message: 'vera has the role viewer, and this needs admin' }
  expect(explain(refusal)).toEqual({ text: 'Not allowed: vera has the role viewer, and this needs admin.' })
  expect(explain(refusal, 'gpudeck account list').command).toBe('gpudeck account list')
})

test('a sentence gets one full stop', () => {
  expect(explain({ status: 400, message: 'ada is the last admin. Make another one first.' }).text).toBe('ada is the last admin. Make another one first.')
})

test('characters that turn a line around do not reach it', () => {
  expect(explain({ status: 404, message: 'no account is called \u202eada' }).text).not.toContain('\u202e')
})
