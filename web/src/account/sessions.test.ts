import { expect, test } from 'vitest'
import { NOW } from '../testing/samples'
import { browserName, sessionLine } from './sessions'

test.each([
  ['Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0', 'Firefox on Linux'],
  ['Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0', 'Edge on Windows'],
  ['Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1 Version/18.0 Safari/605.1', 'Safari on macOS'],
  ['Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1 CriOS/140.0 Safari/604.1', 'Chrome on iOS'],
  ['curl/8.5.0', 'curl'],
  ['', 'unknown browser'],
])('%s', (agent, name) => expect(browserName(agent)).toBe(name))

test('the session of this browser is marked', () => {
  const session = { id: '0123456789abcdef', account: 'ada', created_at: NOW - 60, seen_at: NOW, address: '10.0.0.7', user_agent: 'curl/8', is_this: true }
  expect(sessionLine(session, NOW)).toMatchObject({ isThis: true, where: 'curl, 10.0.0.7' })
})
