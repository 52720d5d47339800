import { expect, test } from 'vitest'
import { orderColour, personColour, UNKNOWN_COLOUR } from './hues'

test('a person has the same colour everywhere', () => {
  expect(personColour('alice')).toBe(personColour('alice'))
  expect(personColour('alice')).not.toBe(personColour('bob'))
})

test('names that differ in one letter differ in colour', () => {
  const colours = new Set(['user1', 'user2', 'user3', 'user4', 'user5', 'user6'].map((user) => personColour(user)))
  expect(colours.size).toBeGreaterThan(4)
})

test('who is not known has the colour of the unknown', () => {
  expect(personColour(null)).toBe(UNKNOWN_COLOUR)
})

test('a hostile name is a colour like any other', () => {
  expect(personColour('red; } </style><script>')).toMatch(/^light-dark\(oklch\([\d. ]+\), oklch\([\d. ]+\)\)$/)
})

test('neighbours in an order differ', () => {
  expect(new Set(Array.from({ length: 8 }, (_, at) => orderColour(at))).size).toBe(8)
})
