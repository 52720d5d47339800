import { afterEach, expect, it, vi } from 'vitest'
import { readUsage, usageSheet, type UsageQuestion } from './usage'

const question: UsageQuestion = { by: 'user', start: 1, end: 2, zone: 'Europe/Berlin', isDaily: true, user: 'a&b' }
const asked: string[] = []

afterEach(() => {
  asked.length = 0
  vi.unstubAllGlobals()
})

function hub(refused: (url: string) => string | null): void {
  vi.stubGlobal('fetch', async (url: string) => {
    asked.push(url)
    const message = refused(url)
    return message === null ? Response.json({ rows: [] }) : Response.json({ error: { message } }, { status: 400 })
  })
}

it('asks for the same as the sheet', async () => {
  hub(() => null)
  expect(await readUsage(question)).toEqual({ done: { rows: [], zone: 'Europe/Berlin' } })
  expect(`${asked[0]}&format=csv`).toBe(usageSheet(question))
  expect(asked[0]).toBe('api/v1/usage?by=user&start=1&end=2&zone=Europe%2FBerlin&user=a%26b&daily=true')
})

it('takes days in UTC from a hub that does not know the zone, and says so', async () => {
  hub((url) => (url.includes('Berlin') ? "no time zone 'Europe/Berlin' is known here" : null))
  expect(await readUsage(question)).toMatchObject({ done: { zone: 'UTC' } })
})

it('asks once about anything else', async () => {
  hub(() => 'no such host')
  expect(await readUsage(question)).toMatchObject({ refused: { status: 400 } })
  expect(asked).toHaveLength(1)
})
