import { describe, expect, it, test } from 'vitest'
import type { Via } from '../api/types'
import { gpu, host } from '../testing/samples'
import { addCommand, formError, emptyDraft, validate, newHost, addedHostStatus, addedHostStatuses, placeholder, removalError, removalOf, type Draft } from './addHost'

const draft = (changes: Partial<Draft>): Draft => ({ ...emptyDraft(), name: 'gpu07', ...changes })

describe('what is sent', () => {
  it('is the name and the way, and nothing that was left empty', () => {
    expect(newHost(draft({ name: ' gpu07 ', user: ' ' }))).toEqual({ name: 'gpu07', via: 'push' })
  })

  it('has numbers for ports', () => {
    expect(newHost(draft({ via: 'ssh', address: '10.0.0.7', port: '2222', user: 'gpudeck', jump: 'gate' }))).toEqual({
      name: 'gpu07',
      via: 'ssh',
      address: '10.0.0.7',
      port: 2222,
      user: 'gpudeck',
      jump: 'gate',
    })
  })

  it('holds nothing that was written for another way', () => {
    expect(newHost(draft({ via: 'pull', user: 'root', jump: 'gate', port: '7080' }))).toEqual({ name: 'gpu07', via: 'pull', port: 7080 })
  })
})

describe('a mistake', () => {
  it.each([
    [{ name: '  ' }, 'name'],
    [{ via: 'ssh', port: '0' }, 'port'],
    [{ via: 'ssh', port: '65536' }, 'port'],
    [{ via: 'ssh', port: '22a' }, 'port'],
  ] as const)('in %o is seen before anybody is asked', (changes, field) => {
    expect(validate(draft(changes))?.field).toBe(field)
  })

  it.each([{}, { via: 'ssh', port: '22' }, { via: 'push', port: 'left over' }] as const)('is not seen in %o', (changes) => {
    expect(validate(draft(changes))).toBeNull()
  })
})

describe('a refusal', () => {
  const refused = (status: number | null, message: string, changes: Partial<Draft> = {}) => formError({ status, message }, draft(changes))

  it.each([
    [400, "this name cannot be used: 'a b' is no name of a host", 'push', 'name'],
    [400, 'a token is for one host: add them one by one', 'push', 'name'],
    [409, 'gpu07 is there already, by hosts added here', 'ssh', 'name'],
    [400, 'address fits one host, and name means 3', 'ssh', 'address'],
    [400, 'port: Expected `int` <= 65535', 'pull', 'port'],
    [400, 'user is of no use with `via: push`', 'push', null],
    [500, 'the hub made a mistake while answering', 'ssh', null],
  ] as const)('%i %s stands at its field', (status, message, via, field) => {
    expect(refused(status, message, { via }).field).toBe(field)
  })

  it('reads as a sentence', () => {
    expect(refused(409, 'gpu07 is there already, by hosts.txt').text).toBe('gpu07 is there already, by hosts.txt.')
    expect(refused(400, 'port: Expected `int` <= 65535', { via: 'ssh' }).text).toBe('Expected `int` <= 65535.')
  })

  it('for want of a right names the command to use instead', () => {
    const told = refused(403, 'changing anything needs a token', { name: 'gpu[01-16]', via: 'ssh', port: '2222' })
    expect(told).toEqual({ field: null, text: 'Not allowed: changing anything needs a token.', command: "gpudeck hosts add 'gpu[01-16]' --via ssh --port 2222" })
  })

  it('without an answer says so', () => {
    expect(refused(null, '')).toEqual({ field: null, text: 'The hub is not responding. Try again later.' })
  })

  it('without words says what came back', () => {
    expect(refused(502, '').text).toBe('The hub refused the request (HTTP 502).')
  })

  it('to remove names the command, too', () => {
    expect(removalError({ status: 403, message: 'no' }, 'gpu07').command).toBe('gpudeck hosts remove gpu07')
    expect(removalError({ status: 409, message: 'gpu07 is named by hosts.txt: take it out there' }, 'gpu07')).toEqual({
      field: null,
      text: 'gpu07 is named by hosts.txt: take it out there.',
    })
  })
})

it('writes a command that a shell reads as it was meant', () => {
  expect(addCommand(draft({}))).toBe('gpudeck hosts add gpu07')
  expect(addCommand(draft({ name: "o'hara; reboot" }))).toBe("gpudeck hosts add 'o'\\''hara; reboot'")
})

it('says what an empty field means', () => {
  const at = (field: 'address' | 'port', via: Via, name = 'gpu07') => placeholder(field, draft({ via, name }))
  expect([at('port', 'ssh'), at('port', 'pull'), at('port', 'scrape')]).toEqual(['22', '7080', '9400'])
  expect([at('address', 'ssh'), at('address', 'ssh', 'gpu[1-2]'), at('address', 'ssh', '')]).toEqual(['gpu07', '', ''])
})

describe('news of a host', () => {
  it('waits until it is heard of', () => {
    expect(addedHostStatus('gpu07', 'push', undefined)).toMatchObject({ state: 'waiting', text: 'waiting for the first report…' })
    expect(addedHostStatus('gpu07', 'ssh', host('gpu07', [], { status: 'never_seen' })).text).toBe('waiting for the first answer…')
  })

  it('is good when it reports', () => {
    expect(addedHostStatus('gpu07', 'push', host('gpu07', [gpu(), gpu()]))).toMatchObject({ state: 'up', text: 'reporting: 2× A100-SXM4-80GB' })
    expect(addedHostStatus('gpu07', 'push', host('gpu07', [], { problems: ['no driver'] }))).toMatchObject({ state: 'up', text: 'reporting. no driver' })
  })

  it('is the reason why it cannot be read, without its name twice', () => {
    const refuses = host('gpu07', [], { status: 'never_seen', problems: ['gpu07 (10.0.0.7:22) refuses connections.'] })
    expect(addedHostStatus('gpu07', 'ssh', refuses)).toMatchObject({ state: 'problem', text: '(10.0.0.7:22) refuses connections.' })
  })

  it('of many has those that need somebody first', () => {
    const names = Array.from({ length: 9 }, (_, i) => `gpu${i}`)
    const hosts = new Map([
      ['gpu0', host('gpu0', [])],
      ['gpu8', host('gpu8', [], { status: 'never_seen', problems: ['no'] })],
    ])
    expect(addedHostStatuses(names, 'ssh', hosts).map((news) => news.name)).toEqual(['gpu8', 'gpu1', 'gpu2', 'gpu3', 'gpu4', 'gpu5'])
  })
})

describe('removing a host', () => {
  const hosts = [
    { id: 'a', name: 'gpu01', origin: 'gpudeck.yaml', is_added: false },
    { id: 'b', name: 'gpu02', origin: 'hosts added here', is_added: true },
    { id: 'c', name: 'gpu03', origin: null, is_added: false },
  ]

  test.each([
    ['one that a file names', 'a', false, 'gpudeck.yaml'],
    ['one that was added', 'b', true, ''],
    ['one that reports by itself', 'c', true, ''],
    ['one that has just come', 'd', true, ''],
  ])('%s', (_, id, isPossible, configuredIn) => {
    expect(removalOf({ done: { hosts } }, id)).toEqual({ isPossible, configuredIn })
  })

  test('a hub that does not say who named a host decides when it is asked', () => {
    expect(removalOf({ refused: { status: 404, message: '' } }, 'a').isPossible).toBe(true)
  })
})
